"""A trained model behind HTTP: engines that translate, batches of what many ask for, the application and its page."""
