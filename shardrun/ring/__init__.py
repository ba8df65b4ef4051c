"""Carry deliveries and reports between two processes through memory that they share. Decides nothing."""
