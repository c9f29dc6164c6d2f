"""The Plan: all that the device needs to run a model, and nothing more."""
