"""Steps that only an operator's flow uses."""
