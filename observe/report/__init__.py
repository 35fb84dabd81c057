"""The report of a warehouse: `queries` and `facts` read its tables, `charts` and `page` create the HTML page."""
