"""Reading and writing files safely. Knows no biology."""
