"""Imports from and exports to other products' storage formats, and recovery; without a running broker."""
