"""Write the pages of docs/reference from the tables in the code."""
