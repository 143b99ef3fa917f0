"""Part ``compose``: the kit's compose files, carried out by Docker Compose on Podman's engine."""
