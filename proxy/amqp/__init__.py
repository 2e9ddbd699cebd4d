"""The wire: frames, tables, methods, handshake, channel life, the relay. Pure; bytes in, bytes out."""
