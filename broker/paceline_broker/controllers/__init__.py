"""What a broker says to the controllers, and hears from them."""
