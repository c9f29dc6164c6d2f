"""The models that tests and the demo use: a catalogue of real ones, and two small ones of our own."""
