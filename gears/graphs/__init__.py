"""Gene graphs: annotation, similarity by shared terms, co-expression, and graphs of the user's own."""
