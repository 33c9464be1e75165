"""Running a plan: the executable, its contexts and the artefact on disk."""
