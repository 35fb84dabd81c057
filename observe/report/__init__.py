"""The report of a warehouse: `queries` and `facts` read its tables, `charts` and `page` draw them."""
