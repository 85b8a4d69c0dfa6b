"""The table of figures: one file per figure, each a ratio inside one run on one machine."""
