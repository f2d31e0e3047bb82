"""Tables, matrices and library objects become graph folders."""
