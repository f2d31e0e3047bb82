"""Strange rows in time, such as payments, and their accounts."""
