"""Transactional ids and the two phases of their transactions."""
