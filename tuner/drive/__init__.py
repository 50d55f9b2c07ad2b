"""The pumps of the study: they start, watch and record; they decide nothing."""
