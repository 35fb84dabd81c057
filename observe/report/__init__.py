"""The report of a warehouse: what is asked of its tables, what is drawn of the answers, the page that holds it all."""
