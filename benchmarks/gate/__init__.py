"""The short form that CI runs: what a run costs, compared with figures that are kept here."""
