"""Object stores that both sides use: the one folder of protocol that does I/O."""
