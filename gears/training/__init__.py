"""Training: the engine, what GEARS adds to it, schedules and checkpoints. Knows no GPU ids, spawns nothing."""
