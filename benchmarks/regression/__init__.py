"""This commit beside another one."""
