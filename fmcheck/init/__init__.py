"""`fmcheck init`: reads an engine's source, and proposes a contract for it.

Nothing is imported or run. What the source shows is proposed as an entry; what it only suggests is
proposed as a comment.
"""
