"""An app of which only the client can misbehave."""
