"""From tile programs to machine code: a printer a machine."""
