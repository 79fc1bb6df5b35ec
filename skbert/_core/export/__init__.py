"""A network as a graph that other engines run: written, converted and quantised."""
