"""Constituency trees: text to trees and back, linearised, drawn, and what may follow a prefix."""
