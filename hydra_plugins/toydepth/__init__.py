"""Hydra plugins of toydepth; Hydra looks for them in the `hydra_plugins` namespace. They do not import JAX."""
