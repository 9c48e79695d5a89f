"""The broker's requests, a module for each family: messages in, messages out."""
