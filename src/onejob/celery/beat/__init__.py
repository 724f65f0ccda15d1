"""The beat schedule: its entries, their moments, and the jobs that workers submit for them."""
