"""Network, batch norm over weighted rows and all workers, objectives. Reads and writes no files."""
