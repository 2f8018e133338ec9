"""HTTP server for a trained model, with a web page and dynamic batching across requests."""
