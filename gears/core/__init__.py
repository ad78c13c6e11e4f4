"""What every room stands on; no biology."""
