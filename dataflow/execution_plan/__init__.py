"""The execution plan of a flow: who applies what, and where; and the difference of two plans."""
