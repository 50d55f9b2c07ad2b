"""The study: a pure state machine. ``next(now)`` says what to do, ``on(event)`` hears what happened.

Every decision is here, and nothing here starts a process or writes a file.
"""
