"""Files over HTTP: fetched once, resumed where that is possible, verified at every further use."""
