"""What all estimators share: parameters, the course of a fit, progress, saving and loading."""
