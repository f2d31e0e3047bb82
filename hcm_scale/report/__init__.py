"""The ranked list shown to a person: reasons, words, page."""
