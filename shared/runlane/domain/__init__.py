"""The rules of Runlane as values and pure functions: standard library only, no clock, no input or output."""
