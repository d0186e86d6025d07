"""Information that a network stores in its weights about a task: complexity, structure function, check by sampling."""
