"""The page for people: HTML, CSS and JavaScript without anything from elsewhere."""
