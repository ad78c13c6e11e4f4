"""What exists because of cell-gears: its file formats, names and published functions."""
