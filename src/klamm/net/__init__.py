"""Frames on sockets: TLS contexts and SASL clients for every connection that klamm opens."""
