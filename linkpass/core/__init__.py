"""The pure core: events in, commands out, `now_s` an argument, one next deadline out. No clock, I/O or chance."""
