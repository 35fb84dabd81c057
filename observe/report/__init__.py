"""The report of a warehouse: `facts` reads its tables, `charts` and `page` create the HTML page."""
