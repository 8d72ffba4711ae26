"""DSpark: DFlash's backbone with a head over the previous token and a confidence head."""
