"""The tests; each folder mirrors one of the product."""
