"""``kbroker doctor``: what a broker needs, checked one by one."""
