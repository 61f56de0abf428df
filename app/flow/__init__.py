"""The user's flow: loading its module, and what is checked before it starts."""
