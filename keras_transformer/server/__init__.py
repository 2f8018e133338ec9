"""HTTP server for a trained model: engines, batching across requests, the web application and its page."""
